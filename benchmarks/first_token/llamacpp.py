import sys

from llama_cpp import Llama

path, prompt, threads, flash = sys.argv[1:]
llm = Llama(path, n_threads=int(threads), n_threads_batch=int(threads), flash_attn=flash == "1", verbose=False)
messages = [{"role": "user", "content": prompt}]
for part in llm.create_chat_completion(messages, max_tokens=1, temperature=0, stream=True):
    print(part["choices"][0]["delta"].get("content", ""), end="", flush=True)

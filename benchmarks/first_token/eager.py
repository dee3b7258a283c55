import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TextStreamer

path, prompt, threads = sys.argv[1:]
torch.set_num_threads(int(threads))
tokenizer = AutoTokenizer.from_pretrained(path)
model = AutoModelForCausalLM.from_pretrained(path)
messages = [{"role": "user", "content": prompt}]
inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
streamer = TextStreamer(tokenizer, skip_prompt=True)
model.generate(**inputs, max_new_tokens=1, do_sample=False, streamer=streamer)

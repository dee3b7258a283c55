"""Answer one prompt and say how fast: python examples/answer.py smollm2-135m-instruct "Why is the sky blue?"

The first argument is a bundle's folder or any name that `edge run` takes: a .gguf file, or a model that `edge models`
lists.
"""

import sys

import edge

path, prompt = sys.argv[1:]

with edge.load(path, kind=edge.Model) as model:
    result = model.generate(prompt, max_tokens=200)

print(result.text)
if result.finish_reason == "length":
    print("(cut off after 200 tokens)")
speed = f"{result.decode_tokens_per_s:.0f} tokens/s" if result.decode_tokens_per_s else "one token"
print(f"{result.ttft_ms:.0f} ms to the first token, then {speed}", file=sys.stderr)

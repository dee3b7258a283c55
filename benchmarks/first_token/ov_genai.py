import sys

import openvino_genai as og

model, prompt, threads, backend, cache, *precision = sys.argv[1:]  # the model: a folder or a GGUF file
settings = {"INFERENCE_NUM_THREADS": int(threads), "ATTENTION_BACKEND": backend, "CACHE_DIR": cache}
if precision:
    settings["INFERENCE_PRECISION_HINT"] = precision[0]
pipeline = og.LLMPipeline(model, "CPU", **settings)
pipeline.generate(prompt, max_new_tokens=1, do_sample=False, streamer=lambda text: print(text, end="", flush=True))

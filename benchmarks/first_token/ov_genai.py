import sys

import openvino_genai as og

folder, prompt, threads, backend = sys.argv[1:]
settings = {"INFERENCE_NUM_THREADS": int(threads), "ATTENTION_BACKEND": backend, "CACHE_DIR": f"{folder}/cache"}
pipeline = og.LLMPipeline(folder, "CPU", **settings)
pipeline.generate(prompt, max_new_tokens=1, do_sample=False, streamer=lambda text: print(text, end="", flush=True))

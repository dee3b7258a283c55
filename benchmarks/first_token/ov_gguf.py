"""Reads the GGUF file and lets OpenVINO keep its own copy, which the next run reads instead."""

import sys
from pathlib import Path

import openvino_genai as og

gguf, prompt, threads, folder, *precision = sys.argv[1:]
settings = {"INFERENCE_NUM_THREADS": int(threads)}
if precision:
    settings["INFERENCE_PRECISION_HINT"] = precision[0]
model = Path(folder)
if not (model / "openvino_model.xml").exists():
    model /= Path(gguf).name  # a link, because the copy is written next to it
    model.symlink_to(gguf)
    settings["enable_save_ov_model"] = True
pipeline = og.LLMPipeline(str(model), "CPU", **settings)
pipeline.generate(prompt, max_new_tokens=1, do_sample=False, streamer=lambda text: print(text, end="", flush=True))

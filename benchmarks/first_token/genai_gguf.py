"""The model builder reads no quantized GGUF file, so that a folder of transformers' is made of it first. What was made
is found again by the next run."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

gguf, prompt, threads, cache = sys.argv[1:]
model, source = Path(cache) / "model", Path(cache) / "transformers"


def made_by(*command: str) -> None:
    subprocess.run([sys.executable, *command], check=True, stdout=sys.stderr)


if not model.is_dir():
    here = Path(__file__).resolve().parent
    made_by(str(here.parent / "convert.py"), gguf, str(source), "float32")
    builder = ["-m", "onnxruntime_genai.models.builder", "-p", "int4", "-e", "cpu", "-c", str(Path(cache) / "builder")]
    made_by(*builder, "-i", str(source), "-o", str(model))
    config = json.loads((model / "genai_config.json").read_text())
    config["model"]["decoder"]["session_options"]["intra_op_num_threads"] = int(threads)
    (model / "genai_config.json").write_text(json.dumps(config))
sys.argv = ["genai.py", str(model), prompt]
runpy.run_path(str(Path(__file__).with_name("genai.py")))

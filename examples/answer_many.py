"""Answer a file of prompts, four at a time: python examples/answer_many.py smollm2-135m-instruct prompts.txt 300MB

The memory is planned before anything is loaded: where four answers do not fit, one sentence says what would.
"""

import sys
from pathlib import Path

import edge

AT_A_TIME = 4

path, file, memory = sys.argv[1:]

prompts = [line for line in Path(file).read_text(encoding="utf-8").splitlines() if line.strip()]
try:
    model = edge.load(path, kind=edge.Model, memory=memory, beams=AT_A_TIME)
except edge.InputError as error:
    sys.exit(str(error))

for place, result in model.answers(prompts, max_tokens=100):  # each as soon as it is done
    print(f"{prompts[place]}\n{result.text.strip()}\n", flush=True)
    print(f"{place + 1}: {result.peak_private_mb:.0f} MB of private memory so far", file=sys.stderr)

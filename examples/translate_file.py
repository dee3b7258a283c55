"""Translate a file line by line: python examples/translate_file.py opus-mt-en-de report.txt > bericht.txt

Two lines at a time, each by one thread; they are printed in the file's order. A model of several languages needs two
more arguments: translate_file.py facebook/nllb-200-distilled-600M report.txt eng_Latn deu_Latn
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import edge

path, file, *languages = sys.argv[1:]
options = edge.Text2TextOptions()
if languages:
    source, target = languages
    options = edge.Text2TextOptions(source_language=source, target_language=target)

model = edge.load(path, kind=edge.Text2Text, threads=1)


def translate(line: str) -> str:
    return model.generate(line, options).text if line.strip() else line


with ThreadPoolExecutor(max_workers=2) as pool:
    for translation in pool.map(translate, Path(file).read_text(encoding="utf-8").splitlines()):
        print(translation, flush=True)

import json
import sys

import onnxruntime_genai as og

model = og.Model(sys.argv[1])
tokenizer = og.Tokenizer(model)
stream = tokenizer.create_stream()
messages = json.dumps([{"role": "user", "content": sys.argv[2]}])
ids = tokenizer.encode(tokenizer.apply_chat_template(messages, add_generation_prompt=True))
params = og.GeneratorParams(model)
params.set_search_options(do_sample=False, max_length=len(ids) + 1)
generator = og.Generator(model, params)
generator.append_tokens(ids)
generator.generate_next_token()
print(stream.decode(generator.get_next_tokens()[0]), flush=True)

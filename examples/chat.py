"""Chat with a model, its answers streamed: python examples/chat.py smollm2-135m-instruct

An empty line or the end of the input leaves. Ctrl-C ends an answer; the chat goes on with what was shown of it.
"""

import sys

import edge

(path,) = sys.argv[1:]

model = edge.load(path, kind=edge.Model)
chat = model.chat(system="You are a helpful assistant who answers briefly.")
while True:
    try:
        message = input("> ")
    except EOFError:
        break
    if not message:
        break
    try:
        for piece in chat.stream(message, max_tokens=300):
            print(piece.text, end="", flush=True)
    except KeyboardInterrupt:
        pass
    except edge.InputError as error:  # the conversation is longer than the context
        print(error)
        chat.reset()
    print()

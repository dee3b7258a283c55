"""The parts of a bundle that describe the model, besides its graphs: tokenizer, chats, texts, speech, the manifest."""

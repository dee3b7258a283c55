"""What a bundle says of a model besides its graphs: tokenizer, chats, texts, speech, the manifest itself."""

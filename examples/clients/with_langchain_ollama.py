"""LangChain over Ollama's protocol (pip install langchain-ollama)."""

from langchain_ollama import ChatOllama

model = ChatOllama(base_url="http://127.0.0.1:8080", model="model")
for piece in model.stream("Name three rivers."):
    print(piece.content, end="", flush=True)

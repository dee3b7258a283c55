"""Models on several machines that Ray makes a cluster of: files of prompts (`lines`), a server (`serving`)."""

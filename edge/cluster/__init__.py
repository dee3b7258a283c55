"""Models on several machines that Ray makes a cluster of: files of prompts (`lines`), a server (`serving`)."""

import os

# Else a thread of Ray's that asks once more after a cluster was left starts another one. Read where Ray is imported.
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")

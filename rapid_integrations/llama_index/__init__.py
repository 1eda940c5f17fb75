"""LlamaIndex: documents that are read whole where only their nodes were retrieved."""

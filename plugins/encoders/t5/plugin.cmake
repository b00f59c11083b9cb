set(plugin_libraries Ditto::tokenizers)  # SentencePiece

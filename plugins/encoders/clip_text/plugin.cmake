set(plugin_libraries Ditto::formats)  # the tokenizer

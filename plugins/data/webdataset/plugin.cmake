set(plugin_libraries Ditto::formats)  # the parsers of tar, pictures and JSON

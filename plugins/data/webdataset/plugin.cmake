set(plugin_libraries ditto_formats)  # the parsers of tar, pictures and JSON

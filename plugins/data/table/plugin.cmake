set(plugin_libraries Ditto::formats)  # the parsers of tables and pictures

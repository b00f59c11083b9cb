find_package(CURL REQUIRED)
set(plugin_libraries Ditto::formats CURL::libcurl)  # the parsers of tar, pictures and JSON; shards on servers

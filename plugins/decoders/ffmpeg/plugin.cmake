# FFmpeg's libraries are GPL-2.0-or-later as Debian builds them: no other part of Ditto links them.
find_package(PkgConfig REQUIRED)
pkg_check_modules(FFMPEG IMPORTED_TARGET libavformat libavcodec libswscale libavutil)
if(FFMPEG_FOUND)
  set(plugin_libraries PkgConfig::FFMPEG)
else()
  set(plugin_lacks "libavformat-dev, libavcodec-dev, libswscale-dev and libavutil-dev")
endif()

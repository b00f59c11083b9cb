// SHA-256, by OpenSSL.
#pragma once

#include <string>
#include <string_view>

namespace ditto::formats {

std::string sha256(std::string_view bytes);           // 64 hex digits
std::string sha256_of_file(const std::string& path);  // read piece by piece; Error(data)

}  // namespace ditto::formats

// SHA-256, by OpenSSL.
#pragma once

#include <string>
#include <string_view>

namespace ditto {

std::string sha256(std::string_view bytes);  // 64 hex digits

}  // namespace ditto

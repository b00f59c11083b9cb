#include "core/record/sha256.h"

#include <array>

#include <fmt/format.h>
#include <openssl/sha.h>

namespace ditto {

std::string sha256(std::string_view bytes) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest;
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest.data());
  std::string text;
  for (const unsigned byte : digest) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace ditto

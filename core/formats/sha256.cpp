#include "core/formats/sha256.h"

#include <openssl/evp.h>
#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "core/formats/file.h"

namespace ditto::formats {

namespace {

using Digest = std::array<unsigned char, SHA256_DIGEST_LENGTH>;

std::string hex(const Digest& digest) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : digest) (text += kDigits[byte >> 4]) += kDigits[byte & 15];
  return text;
}

}  // namespace

std::string sha256(std::string_view bytes) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest.data());
  return hex(digest);
}

std::string sha256_of_file(const std::string& path) {
  const auto file = RandomFile::open(path);
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  bool good = context && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1;
  std::vector<std::byte> piece(std::size_t{1} << 20);
  for (std::uint64_t at = 0; good && at < file->size();) {
    const auto bytes = std::span(piece).first(std::min<std::uint64_t>(piece.size(), file->size() - at));
    file->read(at, bytes);
    good = EVP_DigestUpdate(context.get(), bytes.data(), bytes.size()) == 1;
    at += bytes.size();
  }
  Digest digest;
  if (!good || EVP_DigestFinal_ex(context.get(), digest.data(), nullptr) != 1)
    throw Error(ErrorKind::data, path, "OpenSSL could not compute its SHA-256");
  return hex(digest);
}

}  // namespace ditto::formats

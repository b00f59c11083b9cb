// What tests of kernels share: numbers in a GPU's memory, and their comparison with a reference in fp64.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels.h"
#include "memory.h"

namespace check {

using ditto_cuda::Index;
using ditto_cuda::Storage;
using Reals = std::vector<double>;

const std::vector<Storage>& storages();  // that are tested: all, or the one that was asked for
bool only(const std::string& storage);   // asks for one; false: there is none of that name
const char* name_of(Storage storage);
double rounded(double x, Storage storage);  // to the nearest, of two the even one

// The same on every machine: about normal, mean 0, deviation `scale`.
Reals drawn(std::size_t count, unsigned which, double scale = 1);

template <class T>
class Array {  // in a GPU's memory
 public:
  explicit Array(std::size_t count) : count_(count), at_(static_cast<T*>(device::give(count * sizeof(T)))) {}
  explicit Array(const std::vector<T>& from) : Array(from.size()) { device::up(at_, from.data(), count_ * sizeof(T)); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { device::take(at_); }
  T* at() const { return at_; }
  std::size_t size() const { return count_; }
  std::vector<T> read() const {
    std::vector<T> out(count_);
    device::down(out.data(), at_, count_ * sizeof(T));
    return out;
  }

 private:
  std::size_t count_;
  T* at_;
};

class Numbers {  // of a storage
 public:
  Numbers(Storage storage, std::size_t count) : storage_(storage), bytes_(count * size_of(storage)) {}
  Numbers(Storage storage, const Reals& from);  // rounded
  void* at() const { return bytes_.at(); }
  Reals read() const;
  Storage storage() const { return storage_; }
  std::vector<unsigned char> bytes() const { return bytes_.read(); }

 private:
  Storage storage_;
  Array<unsigned char> bytes_;
};

// A case of a kernel. It is right where no number is further from the reference than one rounding of it, in the
// storage of the result, and 1e-6 of the largest one. At its end it prints its errors and a hash of all results' bits.
class Case {
 public:
  Case(std::string kernel, std::string name, Storage storage);
  ~Case();
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;
  void launched(int status);
  void expect(const char* what, const Numbers& got, const Reals& want);
  void expect(const char* what, const Array<float>& got, const Reals& want);
  void expect_bits(const char* what, const void* got, const void* want, std::size_t bytes);
  void hash(const void* bytes, std::size_t count);
  void fail(const std::string& why);
  static int failed();

 private:
  void compare(const char* what, const Reals& got, const Reals& want, Storage storage);
  std::string text_, failures_;
  std::uint64_t hash_ = 14695981039346656037ull;
};

// Each source of tests, in the order that they run in.
void norms();
void rows();
void updates();
void products();
void group_norms();
void library_products();  // where there is a cublasLt.h

}  // namespace check

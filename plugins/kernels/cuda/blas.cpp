// cublasLt's matrices are stored by columns. A matrix [R, C] by rows is one [C, R] by columns, so D = A B is asked for
// as D^T = B^T A^T: its first operand is our B, its rows are our columns, and its bias is a number a column of ours.
#include "blas.h"

#include <cstdint>
#include <sstream>
#include <utility>

#include <ditto/error.h>

namespace ditto_cuda {

namespace {

constexpr std::size_t kMostRoom = 32 << 20;  // as much as NVIDIA advises for Hopper
constexpr std::uint32_t kAlignment = 16;
constexpr Index kArgumentWidth = 8;  // what divides the width of GELU's argument
constexpr float kOne = 1, kNone = 0;

cudaDataType_t type_of(Storage storage) {
  return storage == Storage::fp32 ? CUDA_R_32F : storage == Storage::bf16 ? CUDA_R_16BF : CUDA_R_16F;
}
const char* name_of(Storage storage) {
  return storage == Storage::fp32 ? "fp32" : storage == Storage::bf16 ? "bf16" : "fp16";
}
const char* name_of(After after) {
  switch (after) {
    case After::nothing: return "nothing";
    case After::bias: return "bias";
    case After::gelu: return "gelu";
    case After::gelu_back: return "gelu_back";
    default: return "sums_of_a";
  }
}
cublasLtEpilogue_t epilogue(After after) {
  switch (after) {
    case After::nothing: return CUBLASLT_EPILOGUE_DEFAULT;
    case After::bias: return CUBLASLT_EPILOGUE_BIAS;
    case After::gelu: return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case After::gelu_back: return CUBLASLT_EPILOGUE_DGELU_BGRAD;
    default: return CUBLASLT_EPILOGUE_BGRADB;
  }
}

bool has_argument(const Product& p) { return p.after == After::gelu || p.after == After::gelu_back; }

// "1024 4608 1152 A B^T bf16 -> bf16 gelu"
std::string text_of(const Product& p) {
  std::ostringstream text;
  text << p.M << ' ' << p.N << ' ' << p.K << (p.a_turned ? " A^T" : " A") << (p.b_turned ? " B^T " : " B ")
       << name_of(p.storage) << " -> " << name_of(p.result) << ' ' << name_of(p.after);
  return text.str();
}

// cublasLt's view of a product.
class Asked {
 public:
  Asked(const BlasLibrary& library, const Product& p) : library_(library) {
    check(library_.make_product(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, p.b_turned ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, p.a_turned ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue(p.after));
    const void* list = p.after == After::bias || p.after == After::gelu ? p.bias : p.sums;
    if (p.after != After::nothing) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, list);
    if (has_argument(p)) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, static_cast<const void*>(p.argument));
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, std::int64_t{p.N});
    }
    first = matrix(p.storage, p.b_turned ? p.N : p.K, p.b_turned ? p.K : p.N);
    second = matrix(p.storage, p.a_turned ? p.K : p.M, p.a_turned ? p.M : p.K);
    out = matrix(p.result, p.M, p.N);
  }
  ~Asked() {
    for (auto* one : {first, second, out})
      if (one) library_.free_matrix(one);
    if (product) library_.free_product(product);
  }
  Asked(const Asked&) = delete;
  Asked& operator=(const Asked&) = delete;

  Status status = 0;  // the first that was not 0
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, out = nullptr;

 private:
  void check(cublasStatus_t found) {
    if (status == 0) status = found;
  }
  template <class T>
  void set(cublasLtMatmulDescAttributes_t what, const T& value) {
    if (status == 0) check(library_.set_product(product, what, &value, sizeof value));
  }
  cublasLtMatrixLayout_t matrix(Storage storage, Index rows, Index columns) {
    cublasLtMatrixLayout_t made = nullptr;
    if (status == 0)
      check(library_.make_matrix(&made, type_of(storage), static_cast<std::uint64_t>(columns),
                                 static_cast<std::uint64_t>(rows), columns));
    return made;
  }

  const BlasLibrary& library_;
};

// What cublasLt thinks the fastest; none: it has nothing for it.
std::optional<cublasLtMatmulHeuristicResult_t> fastest(const BlasLibrary& library, cublasLtHandle_t handle,
                                                       const Asked& asked) {
  cublasLtMatmulPreference_t preference = nullptr;
  if (library.make_preference(&preference)) return std::nullopt;
  Status status = 0;
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t what, auto value) {
    if (status == 0) status = library.set_preference(preference, what, &value, sizeof value);
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{kMostRoom});
  // Parts of K are added up in memory of their own and in their order, if at all: not in place, by atomics.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  for (const auto operand : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                             CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    set(operand, kAlignment);
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  if (status == 0)
    status = library.choose(handle, asked.product, asked.first, asked.second, asked.out, asked.out, preference, 1,
                            &found, &count);
  library.free_preference(preference);
  return status == 0 && count > 0 && found.state == CUBLAS_STATUS_SUCCESS ? std::optional(found) : std::nullopt;
}

}  // namespace

Blas::Blas(const std::map<std::string, std::string>& kept, std::string set) : set_(std::move(set)) {
  for (const auto& [shape, text] : kept) kept_.emplace(shape, read(shape, text));
}

Blas::~Blas() {
  if (handle_) library_->destroy(handle_);
}

std::optional<std::size_t> Blas::room(const Product& p) {
  const std::lock_guard lock(mutex_);
  const auto& known = algorithm(p);
  return known.there ? std::optional(known.room) : std::nullopt;
}

Status Blas::multiply(const Product& p, void* room, Stream stream) {
  Algorithm known;
  {
    const std::lock_guard lock(mutex_);
    known = algorithm(p);
  }
  if (!known.there) return CUBLAS_STATUS_NOT_SUPPORTED;
  const Asked asked(*library_, p);
  if (asked.status) return asked.status;
  return library_->multiply(handle_, asked.product, &kOne, p.b, asked.first, p.a, asked.second, p.adds ? &kOne : &kNone,
                            p.d, asked.out, p.d, asked.out, &known.way, room, known.room,
                            static_cast<cudaStream_t>(stream));
}

const Blas::Algorithm& Blas::algorithm(const Product& p) {
  const Shape shape{p.M,
                    p.N,
                    p.K,
                    p.a_turned,
                    p.b_turned,
                    static_cast<Index>(p.storage),
                    static_cast<Index>(p.result),
                    static_cast<Index>(p.after)};
  if (const auto found = known_.find(shape); found != known_.end()) return found->second;
  if (!library_) library_ = &blas_library();
  if (!handle_)
    if (const auto status = library_->create(&handle_))
      throw ditto::Error(ditto::ErrorKind::plugin, "cublasLt",
                         "cannot begin on this GPU: its status " + std::to_string(status),
                         "see whether other processes have left it memory");
  Algorithm chosen{};
  const Asked asked(*library_, p);
  const auto text = text_of(p);
  if (asked.status != 0 || (has_argument(p) && p.N % kArgumentWidth != 0)) return known_[shape] = chosen;
  if (const auto kept = kept_.find(text); kept != kept_.end()) {
    cublasLtMatmulHeuristicResult_t result{};
    const auto status = library_->check(handle_, asked.product, asked.first, asked.second, asked.out, asked.out,
                                        &kept->second.way, &result);
    if (kept->second.version != library_->version() || status != 0 || result.workspaceSize > kept->second.room)
      throw ditto::Error(ditto::ErrorKind::config, "kernels." + set_,
                         "cublasLt " + std::to_string(library_->version()) +
                             " on this GPU does not know the algorithm that the run has kept of cublasLt " +
                             std::to_string(kept->second.version) + " for the product " + text,
                         "go on with the cublasLt and the kind of GPU that the run began with; or, in training, choose "
                         "anew by --allow-change kernels." +
                             set_);
    return known_[shape] = kept->second;
  }
  if (const auto found = fastest(*library_, handle_, asked)) {
    chosen = {true, found->algo, found->workspaceSize, library_->version()};
    kept_.emplace(text, chosen);
  }
  return known_[shape] = chosen;
}

// cublasLt's version, which alone knows it, the room, and the algorithm's words in hexadecimal.
std::map<std::string, std::string> Blas::kept() {
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::string> all;
  for (const auto& [shape, chosen] : kept_) {
    std::ostringstream text;
    text << chosen.version << ' ' << chosen.room << std::hex;
    for (const auto word : chosen.way.data) text << ' ' << word;
    all.emplace(shape, text.str());
  }
  return all;
}

Blas::Algorithm Blas::read(const std::string& shape, const std::string& text) const {
  Algorithm kept{};
  kept.there = true;
  std::istringstream words(text);
  words >> kept.version >> kept.room >> std::hex;
  for (auto& word : kept.way.data) words >> word;
  if (!words || !(words >> std::ws).eof() || kept.room > kMostRoom)
    throw ditto::Error(ditto::ErrorKind::config, "kernels." + set_,
                       "what the run has kept for the product " + shape + " is no algorithm: " + text,
                       "go on from another checkpoint, or, in training, choose anew by --allow-change kernels." + set_);
  return kept;
}

}  // namespace ditto_cuda

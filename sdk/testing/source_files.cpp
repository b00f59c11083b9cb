// That a source's fingerprint knows each of its files.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <ditto/error.h>

#include <ditto/testing/checks.h>

namespace ditto::testing {

namespace {

namespace fs = std::filesystem;

// A folder's files, in a folder of their own that may be spoiled.
class FolderCopy {
 public:
  explicit FolderCopy(const std::string& folder) {
    std::string name = (fs::temp_directory_path() / "ditto-source-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw Error(ErrorKind::data, name, "cannot be made", "set TMPDIR");
    path_ = name;
    fs::copy(folder, path_, fs::copy_options::recursive);
    for (const auto& entry : fs::recursive_directory_iterator(path_))
      if (entry.is_regular_file()) files_.push_back(entry.path());
    std::sort(files_.begin(), files_.end());
  }
  ~FolderCopy() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  FolderCopy(const FolderCopy&) = delete;
  FolderCopy& operator=(const FolderCopy&) = delete;

  const fs::path& path() const { return path_; }
  const std::vector<fs::path>& files() const { return files_; }

 private:
  fs::path path_;
  std::vector<fs::path> files_;
};

std::string bytes_of_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_bytes(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// What a source holds; what refuses to open holds something else than any that opens.
struct Seen {
  bool opens = false;
  std::string fingerprint;
  std::vector<std::string> samples;  // of each: its tensors' bytes, or "bad"
};

std::string text_of(const Sample& sample) {
  std::string text;
  for (const auto& [name, tensor] : sample.tensors) {
    const auto whole = tensor.contiguous();
    text += name + ' ' + c10::toString(whole.scalar_type()) + ' ';
    text.append(static_cast<const char*>(whole.const_data_ptr()), whole.nbytes());
  }
  return text;
}

enum class Look { at_fingerprint, at_samples };

class SourceFiles {
 public:
  SourceFiles(const std::string& path, const OptionValues& options, const std::string& folder)
      : path_(path), options_(options), copy_(folder), before_(look(Look::at_samples)) {}

  void run(Report& report) {
    report.check("it opens a copy of its folder, where it has many files", [&] {
      if (!before_.opens) return std::string("it does not");
      for (const auto& file : copy_.files())
        if (is_read(file)) read_.push_back(file);
      return read_.size() > kFew
                 ? ""
                 : "of " + std::to_string(copy_.files().size()) + " files " + std::to_string(read_.size()) +
                       " make a difference, and a fingerprint of a few would do";
    });
    const auto seen = [&](const char* what, const std::function<void(std::string&)>& change) {
      report.check(std::string("the fingerprint sees of each file ") + what, [&] { return unseen(change); });
    };
    seen("its size", [](std::string& bytes) { bytes += bytes.back(); });
    seen("its first bytes", [](std::string& bytes) { bytes[std::min<size_t>(bytes.size() - 1, 37)] ^= 1; });
    seen("its last bytes", [](std::string& bytes) { bytes[bytes.size() - std::min<size_t>(bytes.size(), 37)] ^= 1; });
  }

 private:
  static constexpr size_t kFew = 64;

  Seen look(Look at) const {
    Seen seen;
    try {
      const auto source = make<Source>(path_, options_, {.split = SplitOf::train, .folder = copy_.path().string()});
      seen.opens = true;
      seen.fingerprint = source->fingerprint();
      for (int64_t i = 0; at == Look::at_samples && i < source->size(); ++i) try {
          seen.samples.push_back(text_of(source->read(i)));
        } catch (const Error&) {
          seen.samples.emplace_back("bad");
        }
    } catch (const Error&) {
    }
    return seen;
  }

  // Whether anything is another without it.
  bool is_read(const fs::path& file) const {
    const auto bytes = bytes_of_file(file);
    fs::remove(file);
    const auto without = look(Look::at_samples);
    write_bytes(file, bytes);
    return !bytes.empty() && (!without.opens || without.samples != before_.samples);
  }

  // The first file whose change is not seen, and how many there are.
  std::string unseen(const std::function<void(std::string&)>& change) const {
    std::string first;
    size_t count = 0;
    for (const auto& file : read_) {
      const auto bytes = bytes_of_file(file);
      auto changed = bytes;
      change(changed);
      write_bytes(file, changed);
      const auto after = look(Look::at_fingerprint);
      write_bytes(file, bytes);
      if (!after.opens || after.fingerprint != before_.fingerprint) continue;
      if (count++ == 0) first = file.lexically_relative(copy_.path()).string();
    }
    return count == 0 ? ""
                      : "not of " + std::to_string(count) + " of " + std::to_string(read_.size()) +
                            " files; the first: " + first;
  }

  std::string path_;
  OptionValues options_;
  FolderCopy copy_;
  Seen before_;
  std::vector<fs::path> read_;
};

}  // namespace

Report check_source_files(const std::string& path, const OptionValues& options, const std::string& folder) {
  Report report("data " + path + ", its files");
  SourceFiles(path, options, folder).run(report);
  return report;
}

}  // namespace ditto::testing

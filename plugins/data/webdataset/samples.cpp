#include "samples.h"

#include <sys/resource.h>

#include <algorithm>

#include "contents.h"

namespace webdataset {

namespace formats = ditto::formats;

OpenFiles::OpenFiles(std::vector<std::string> paths, Store store) : paths_(std::move(paths)), store_(std::move(store)) {
  rlimit limit{};
  const bool known = ::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  slots_.resize(std::clamp<std::size_t>(known ? limit.rlim_cur / 4 : 256, 1, std::max<std::size_t>(paths_.size(), 1)));
}

std::shared_ptr<const formats::RandomFile> OpenFiles::get(std::size_t file) const {
  auto& slot = slots_[file % slots_.size()];
  {
    const std::lock_guard lock(mutex_);
    if (slot.file && slot.number == file) return slot.file;
  }
  auto opened = store_.open(paths_[file]);  // a server may take its time, and others read on
  const std::lock_guard lock(mutex_);
  slot = {file, opened};
  return opened;
}

void OpenFiles::close() {
  const std::lock_guard lock(mutex_);
  for (auto& slot : slots_) slot = {};
}

ListedShards::ListedShards(std::vector<std::string> paths, Wanted wanted, const Store& store)
    : wanted_(std::move(wanted)), index_(index_shards(std::move(paths), wanted_, store)), files_(index_.paths, store) {}

RawSample ListedShards::read(std::int64_t index) const {
  const Item& item = index_.items.at(static_cast<std::size_t>(index));
  const auto file = files_.get(item.shard);
  RawSample raw;
  raw.shard = index_.file_name(item.shard);
  raw.key = item.key;
  raw.extension = item.extension;
  const auto read = [&](const Range& range, const std::string& extension) -> std::span<const std::byte> {
    return raw.bytes.emplace_back(formats::read_member(*file, range.offset, range.size, raw.place(extension)));
  };
  raw.image = read(item.image, item.extension);
  if (wanted_.label.wanted()) {
    raw.label_from = &wanted_.label.any_of[item.label_from];
    raw.label = read(item.label, raw.label_from->extension);
  }
  if (wanted_.caption.wanted()) {
    raw.caption_from = &wanted_.caption.any_of[item.caption_from];
    raw.caption = read(item.caption, raw.caption_from->extension);
  }
  if (!wanted_.text.empty()) raw.text = read(item.text, wanted_.text);
  return raw;
}

std::string ListedShards::names() const {
  std::string text;
  for (std::size_t i = 0; i < index_.paths.size(); ++i)
    text += '\n' + index_.file_name(i) + ' ' + std::to_string(index_.bytes[i]);
  for (const Item& item : index_.items) text += '\n' + item.key;
  return text;
}

std::string ListedShards::contents() const {
  return hash_of_contents(index_, files_) + hash_of_ends(files_, [this](std::size_t shard, const TakeRange& take) {
           for (const Item& item : index_.items_of(shard))
             for (const Range& range : {item.image, item.label, item.caption, item.text}) take(range);
         });
}

}  // namespace webdataset

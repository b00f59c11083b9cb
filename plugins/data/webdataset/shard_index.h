// Which samples a list of tar shards holds, and where their bytes are.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ditto/formats/shard.h>

#include "store.h"
#include "text_place.h"

namespace webdataset {

struct Range {
  std::uint64_t offset = 0, size = 0;
};

struct Item {
  std::uint32_t shard;
  std::string key;
  std::string extension;  // of the picture
  Range image, label, caption, text;
  std::int64_t label_read = -1;                    // when the shard was opened; -1: not wanted, or no label
  std::uint32_t label_from = 0, caption_from = 0;  // which of their places it has
};

struct ShardIndex {
  std::vector<std::string> paths;    // in the order of their samples
  std::vector<std::uint64_t> bytes;  // of each file
  std::vector<Item> items;
  std::vector<std::string> warnings;  // damage and what was left out for it
  std::vector<std::string> notes;     // what else a reader may not expect

  std::string file_name(std::size_t shard) const;  // "train-000000.tar"
  std::span<const Item> items_of(std::size_t shard) const;
};

struct Wanted {
  std::vector<std::string> image;  // extensions
  TextPlace label, caption;
  std::string text;                     // extension of an embedded text; empty: not wanted
  std::int64_t classes = 0;             // labels are below this
  std::vector<std::string> names = {};  // of the classes, where they are known
  bool one_image = false;               // nobody says which of several pictures is the sample's

  bool reads(std::string_view extension) const;  // whether a member of this extension is read
};

// Expands braces, paths and globs, of URLs braces alone (relative ones start at `folder`), each in alphabetical order.
// Throws Error(config), through `where` and `option`, for a pattern that matches nothing and for a shard named twice,
// by whatever names.
std::vector<std::string> expand_shards(const std::vector<std::string>& patterns, const std::string& folder,
                                       const std::string& option);
// Throws Error(config) for a shard that is learned from and held out. Of patterns that match nothing nothing is known.
void require_apart(const std::vector<std::string>& learned, const std::vector<std::string>& held_out_patterns,
                   const std::string& folder);
// What a reader may not expect of such a list: shards that are held out by their names beside others.
std::vector<std::string> notes_on_shards(const std::vector<std::string>& paths);
// The folders that hold such shards, as far as they are there.
std::vector<std::string> folders_of_shards(const std::vector<std::string>& patterns, const std::string& folder,
                                           const std::string& option);

// Calls work(i) for each of `count` shards, several at a time. Throws what the first that failed threw.
void for_each_shard(std::size_t count, const std::function<void(std::size_t)>& work);

// Reads the headers and labels of all shards, several at a time. A damaged shard keeps its whole samples, and a label
// that is no number is left for read_label to say. Throws Error(data) for a picture without the label or caption that
// is wanted, and where nothing is left; Error(config) for labels that data.classes does not reach, for samples with
// several pictures of which nobody says which is meant, and for names of classes that stand at two numbers.
ShardIndex index_shards(std::vector<std::string> paths, const Wanted& wanted, const Store& store);

}  // namespace webdataset

// The most that the readers of foreign bytes take. A limit stands wherever a small file could ask for memory or time
// out of proportion to its size; each lies far above what honest files hold. docs/reliability.md lists them for users.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ditto::formats::limits {

inline constexpr std::size_t kMiB = std::size_t{1} << 20;

// Recipes. The largest honest ones list thousands of shards; ten thousand names take half a MiB.
inline constexpr std::size_t kRecipeBytes = 4 * kMiB;
inline constexpr std::size_t kRecipeValues = 100'000;  // a value takes fifty times the two bytes it may be written in
inline constexpr std::size_t kTableKeys = 1000;        // tables are searched key by key
inline constexpr int kRecipeDepth = 64;                // of tables and lists, and of the parts of a key
inline constexpr std::size_t kRecipeFiles = 64;        // a recipe and all that it includes, each time it is read

// JSON. A value takes up to 30 times the bytes it is written in; a checkpoint's index about seven times.
inline constexpr std::size_t kJsonFreeBytes = 32 * kMiB;  // of memory, whatever the text
inline constexpr std::size_t kJsonTimesText = 16;         // and so much for each byte of text
inline constexpr int kJsonDepth = 128;

// YAML: a data set's own notes, which may name a hundred thousand shards. What an alias repeats counts each time.
inline constexpr std::size_t kYamlBytes = 16 * kMiB;
inline constexpr std::size_t kYamlValues = 1'000'000;
inline constexpr int kYamlDepth = 64;

// safetensors. The header's length is the reference's own limit.
inline constexpr std::uint64_t kHeaderBytes = 100'000'000;
inline constexpr std::size_t kHeaderTensors = 250'000;  // a name of one letter takes 400 bytes of memory
inline constexpr std::size_t kHeaderNotes = 65'536;     // entries of __metadata__
inline constexpr std::size_t kDims = 64;

// .pt files. A large model's optimizer has some ten thousand tensors, each of forty opcodes.
inline constexpr std::uint64_t kPickleBytes = 64 * kMiB;
inline constexpr std::uint64_t kPickleOpcodes = 4'000'000;  // one makes a value or a note of 50 bytes
inline constexpr std::size_t kPickleTreeBytes =
    64 * kMiB;  // what is kept of it: one value may be named a million times
inline constexpr int kPickleDepth = 100;
inline constexpr std::size_t kTensorsValues = 100'000;      // of a pickle that is to hold one tensor
inline constexpr std::uint64_t kExpandedBytes = 64 * kMiB;  // of a tensor that repeats a smaller storage

// Pictures, and whatever else a sample is made of.
inline constexpr std::uint64_t kMemberBytes = 256 * kMiB;
inline constexpr std::uint64_t kPixels = std::uint64_t{64} << 20;
inline constexpr std::uint64_t kPictureBytes = 320 * kMiB;  // what a decoder holds at once: pixels and its own tables
inline constexpr std::size_t kProfileBytes = 4 * kMiB;      // of colours; a printer's has one or two
inline constexpr int kJpegScans = 500;
inline constexpr std::uint64_t kJpegScannedPixels = std::uint64_t{1}
                                                    << 30;  // each scan visits all; ten scans are usual
inline constexpr std::uint32_t kPngTexts = 64;              // text chunks that are read, and …
inline constexpr std::size_t kPngTextBytes = kMiB;          // … how long each may be when it is unpacked

// Tables. Text of numbers shrinks five- to twenty-fold; what shrinks further is no table.
inline constexpr std::size_t kTableBytes = 1024 * kMiB;
inline constexpr std::size_t kTableWidth = 4'000'000;  // a picture of a thousand by a thousand in colour has three
inline constexpr std::size_t kTextColumns = 10'000;    // of a table of texts, …
inline constexpr std::size_t kCellBytes = kMiB;        // … and of one of its quoted cells
inline constexpr std::size_t kUnpackedFreeBytes = 16 * kMiB;
inline constexpr std::size_t kUnpackedTimesPacked = 100;

// Tokenizers' files: UMT5's model of 256,300 pieces has 4.5 MB, its tokenizer.json 17.
inline constexpr std::uint64_t kVocabularyBytes = 128 * kMiB;

// Events of TensorBoard, plugins' stamps.
inline constexpr std::uint64_t kEventBytes = 64 * kMiB;
inline constexpr std::uint64_t kSectionBytes = kMiB;

}  // namespace ditto::formats::limits

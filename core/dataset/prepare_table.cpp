#include "core/dataset/prepare.h"

#include <algorithm>
#include <cmath>

#include <ditto/error.h>
#include <ditto/options.h>

#include "core/dataset/shard_writer.h"
#include "core/formats/picture/picture.h"
#include "core/formats/text/table.h"

namespace ditto {

namespace {

// The column of the labels, or -1.
std::int64_t label_column(const formats::NumberTable& table, const std::string& name) {
  const auto width = static_cast<std::int64_t>(table.width);
  if (name == "none") return -1;
  const auto at = std::find(table.columns.begin(), table.columns.end(), name);
  if (at != table.columns.end()) return at - table.columns.begin();
  if (name == "first") return 0;
  if (name == "last") return width - 1;
  const auto near = nearest(name, table.columns);
  throw Error(
      ErrorKind::config, "--label", "the table has no column \"" + name + "\"",
      near.empty() ? "expected \"last\", \"first\", \"none\" or a column's name" : "did you mean \"" + near + "\"?");
}

class RowPictures {
 public:
  RowPictures(const formats::NumberTable& table, const TableLayout& layout, std::string where)
      : table_(table), layout_(layout), where_(std::move(where)), label_(label_column(table, layout.label)) {
    const auto values = static_cast<std::int64_t>(table.width) - (label_ < 0 ? 0 : 1);
    if (layout.height < 1 || layout.width < 1 || (layout.channels != 1 && layout.channels != 3) ||
        layout.height * layout.width * layout.channels != values)
      throw Error(ErrorKind::config, "--shape",
                  "is " + std::to_string(layout.height) + "x" + std::to_string(layout.width) + "x" +
                      std::to_string(layout.channels) + ", but a row holds " + std::to_string(values) + " values",
                  "expected HEIGHTxWIDTH or HEIGHTxWIDTHx3 with that product");
    if (!(layout.largest > 0)) throw Error(ErrorKind::config, "--largest", "is not above 0", "give the value of white");
  }

  std::vector<std::byte> png(std::size_t row) const {
    formats::Picture picture;
    picture.height = static_cast<int>(layout_.height);
    picture.width = static_cast<int>(layout_.width);
    picture.channels = static_cast<int>(layout_.channels);
    const auto values = table_.row(row);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (static_cast<std::int64_t>(i) == label_) continue;
      if (values[i] < 0 || values[i] > layout_.largest)
        wrong(row, i, "value " + to_text(values[i]) + " is outside 0 … " + to_text(layout_.largest), "set --largest");
      picture.pixels.push_back(static_cast<std::uint8_t>(std::lround(values[i] * 255 / layout_.largest)));
    }
    return formats::encode_png(picture);
  }

  // -1: the table has none.
  std::int64_t label(std::size_t row) const {
    if (label_ < 0) return -1;
    const double value = table_.row(row)[static_cast<std::size_t>(label_)];
    if (value < 0 || value != std::floor(value) || value > 1e15)
      wrong(row, static_cast<std::size_t>(label_), "label " + to_text(value) + " is not an integer, 0 or more",
            "name another column with --label");
    return static_cast<std::int64_t>(value);
  }

 private:
  [[noreturn]] void wrong(std::size_t row, std::size_t column, const std::string& what,
                          const std::string& remedy) const {
    throw Error(ErrorKind::data, where_ + ": row " + std::to_string(row + 1) + ", column " + std::to_string(column + 1),
                what, remedy);
  }

  const formats::NumberTable& table_;
  TableLayout layout_;
  std::string where_;
  std::int64_t label_;
};

}  // namespace

Prepared prepare_table(const std::string& path, const TableLayout& layout, const PrepareOptions& options) {
  const auto table = formats::read_number_table(path);
  const RowPictures pictures(table, layout, path);
  ShardWriter writer(options);
  for (std::size_t row = 0; row < table.rows(); ++row) {
    const auto png = pictures.png(row);
    const std::int64_t label = pictures.label(row);
    const std::string label_text = std::to_string(label);
    std::vector<ShardWriter::Member> members{{"png", png}};
    if (label >= 0) members.push_back({"cls", std::as_bytes(std::span(label_text))});
    writer.add(members, label);
    if (options.progress) options.progress(static_cast<std::int64_t>(row + 1), static_cast<std::int64_t>(table.rows()));
  }
  return writer.finish();
}

}  // namespace ditto

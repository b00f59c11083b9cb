#include <ditto/parallel/parcel.h>

#include <algorithm>
#include <string>

#include <torch/types.h>

namespace ditto {

using torch::Tensor;

namespace {

class Writer {
 public:
  explicit Writer(std::vector<int64_t>& to) : to_(to) {}
  void put(int64_t number) { to_.push_back(number); }
  void put(at::IntArrayRef list) {
    put(static_cast<int64_t>(list.size()));
    to_.insert(to_.end(), list.begin(), list.end());
  }
  void put(const std::string& text) { put(std::vector<int64_t>(text.begin(), text.end())); }

 private:
  std::vector<int64_t>& to_;
};

class Reader {
 public:
  explicit Reader(const std::vector<int64_t>& from) : at_(from.begin()) {}
  int64_t number() { return *at_++; }
  std::vector<int64_t> list() {
    const auto begin = at_ + 1;
    at_ = begin + *at_;
    return {begin, at_};
  }
  std::string text() {
    const auto letters = list();
    return {letters.begin(), letters.end()};
  }

 private:
  std::vector<int64_t>::const_iterator at_;
};

// How a tensor travels.
struct Form {
  std::vector<int64_t> shape;
  at::ScalarType dtype;
  bool differentiable;
};

void put(Writer& writer, const Tensor& tensor) {
  writer.put(tensor.sizes());
  writer.put(static_cast<int64_t>(tensor.scalar_type()));
  writer.put(static_cast<int64_t>(tensor.requires_grad()));
}

std::vector<Form> read_forms(Reader& reader) {
  std::vector<Form> forms(static_cast<size_t>(reader.number()));
  for (auto& form : forms) {
    form.shape = reader.list();
    form.dtype = static_cast<at::ScalarType>(reader.number());
    form.differentiable = reader.number() != 0;
  }
  return forms;
}

// The place of a field in a stream: the way back from Stream::fields().
Tensor& place(Stream& stream, const std::string& name, int64_t token_dim, Role role) {
  const auto after = [&](const char* prefix) { return name.substr(std::string(prefix).size()); };
  if (name == "x") return stream.x_BTD;
  if (name == "cond") return stream.condition.cond_BD;
  if (name == "text") return stream.condition.text_BSE;
  if (name == "text_mask") return stream.condition.text_mask_BS;
  if (name == "rotary") return stream.rotary_TK;
  if (name.starts_with("auxiliary.")) return stream.auxiliary_losses[after("auxiliary.")];
  if (name.starts_with("skip.")) {
    const size_t index = std::stoul(after("skip."));
    if (stream.skips_BTD.size() <= index) stream.skips_BTD.resize(index + 1);
    return stream.skips_BTD[index];
  }
  auto& extra = stream.extra[after("extra.")];
  extra.token_dim = token_dim;
  extra.role = role;
  return extra.tensor;
}

void put_places(Writer& writer, const Sequence& sequence) {
  for (const int64_t number :
       {sequence.grid.frames, sequence.grid.rows, sequence.grid.columns, sequence.first_token, sequence.region_offset})
    writer.put(number);
  writer.put(static_cast<int64_t>(sequence.packing != nullptr));
  if (!sequence.packing) return;
  writer.put(sequence.packing->lengths);
  std::vector<int64_t> grids;
  for (const auto& grid : sequence.packing->grids) grids.insert(grids.end(), {grid.frames, grid.rows, grid.columns});
  writer.put(grids);
}

void read_places(Reader& reader, Sequence& sequence, torch::Device device) {
  for (int64_t* number : {&sequence.grid.frames, &sequence.grid.rows, &sequence.grid.columns, &sequence.first_token,
                          &sequence.region_offset})
    *number = reader.number();
  sequence.packing.reset();
  if (reader.number() == 0) return;
  auto lengths = reader.list();
  const auto numbers = reader.list();
  std::vector<Grid> grids;
  for (size_t i = 0; i < numbers.size(); i += 3) grids.push_back({numbers[i], numbers[i + 1], numbers[i + 2]});
  sequence.packing = packing_of(std::move(lengths), device, std::move(grids));
}

}  // namespace

StreamParcel StreamParcel::of(Stream& stream, const std::function<bool(const Field&)>& takes) {
  StreamParcel parcel;
  std::vector<std::pair<Field, int64_t>> fields;
  for (const auto& field : stream.fields()) {
    if (!takes(field)) continue;
    auto& tensors = parcel.tensors;
    const auto same = [&](const Tensor& tensor) { return tensor.is_same(*field.tensor); };
    const auto found = std::find_if(tensors.begin(), tensors.end(), same);
    fields.emplace_back(field, found - tensors.begin());
    if (found == tensors.end()) tensors.push_back(*field.tensor);
  }
  Writer writer(parcel.header);
  writer.put(static_cast<int64_t>(parcel.tensors.size()));
  for (const auto& tensor : parcel.tensors) put(writer, tensor);
  put_places(writer, stream);
  const bool has_text = std::any_of(fields.begin(), fields.end(), [](const auto& f) { return f.first.name == "text"; });
  writer.put(has_text ? stream.condition.text_lengths : std::vector<int64_t>());
  writer.put(static_cast<int64_t>(fields.size()));
  for (const auto& [field, index] : fields) {
    writer.put(field.name);
    writer.put(field.token_dim);
    writer.put(static_cast<int64_t>(field.role));
    writer.put(index);
    const bool has_own = field.sequence != &stream;
    writer.put(static_cast<int64_t>(has_own));
    if (has_own) put_places(writer, *field.sequence);
  }
  return parcel;
}

std::vector<Tensor> StreamParcel::room(const std::vector<int64_t>& header, torch::Device device) {
  Reader reader(header);
  std::vector<Tensor> tensors;
  for (const auto& form : read_forms(reader))
    tensors.push_back(torch::empty(form.shape, torch::TensorOptions(form.dtype).device(device)));
  return tensors;
}

std::vector<size_t> StreamParcel::differentiable() const {
  Reader reader(header);
  const auto forms = read_forms(reader);
  std::vector<size_t> indices;
  for (size_t i = 0; i < forms.size(); ++i)
    if (forms[i].differentiable) indices.push_back(i);
  return indices;
}

void StreamParcel::unpack(Stream& stream) const {
  Reader reader(header);
  read_forms(reader);
  const auto device = tensors.empty() ? torch::Device(torch::kCPU) : tensors.front().device();
  read_places(reader, stream, device);
  if (auto lengths = reader.list(); !lengths.empty()) stream.condition.text_lengths = std::move(lengths);
  const int64_t fields = reader.number();
  for (int64_t i = 0; i < fields; ++i) {
    const auto name = reader.text();
    const int64_t token_dim = reader.number();
    const auto role = static_cast<Role>(reader.number());
    place(stream, name, token_dim, role) = tensors[static_cast<size_t>(reader.number())];
    if (reader.number() == 0) continue;
    auto& extra = stream.extra.at(name.substr(std::string("extra.").size()));
    read_places(reader, extra.own.emplace(), device);
  }
}

}  // namespace ditto

// Opcodes: PEP 3154, PEP 574 and the comments of CPython's pickletools.
#include "core/formats/tensor/pickle.h"

#include <ditto/error.h>

#include <bit>
#include <cstdio>
#include <unordered_map>

#include "core/formats/limits.h"
#include "core/formats/text/utf8.h"

namespace ditto::formats::pickle {

namespace {

class Machine {
 public:
  Machine(std::string_view bytes, std::string_view where, Arena& arena) : bytes_(bytes), where_(where), arena_(arena) {}

  Ref run() {
    for (std::uint64_t opcodes = 0; !result_; ++opcodes) {
      opcode_at_ = at_;
      if (opcodes == limits::kPickleOpcodes) fail("the pickle has over 4,000,000 opcodes, which no checkpoint's has,");
      step(number(1));
    }
    return result_;
  }

  std::size_t used() const { return at_; }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorKind::checkpoint, where_, what + " at byte " + std::to_string(opcode_at_),
                "the pickle is damaged, or was not written by torch.save");
  }

  std::string_view take(std::uint64_t count) {
    if (count > bytes_.size() - at_) fail("the pickle is cut off");
    const std::string_view part = bytes_.substr(at_, count);
    at_ += count;
    return part;
  }

  std::uint64_t number(int bytes) {  // little endian, as all of pickle's but floats
    const std::string_view part = take(static_cast<std::uint64_t>(bytes));
    std::uint64_t value = 0;
    for (std::size_t i = part.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(part[i]);
    return value;
  }

  std::string_view line() {
    const auto end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) fail("the pickle is cut off");
    const std::string_view text = take(end - at_);
    if (utf8_damage(text)) fail("a class's name is not UTF-8");
    ++at_;
    return text;
  }

  template <class T>
  Value* make(T data) {
    arena_.push_back(Value{std::move(data)});
    return &arena_.back();
  }

  void push(Value* value) { stack_.push_back(value); }
  template <class T>
  void push_new(T data) {
    push(make(std::move(data)));
  }

  Value* top() const {
    if (stack_.empty() || stack_.size() == floor()) fail("an opcode finds nothing on the stack");
    return stack_.back();
  }
  Value* pop() {
    Value* value = top();
    stack_.pop_back();
    return value;
  }
  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }

  std::vector<Ref> pop_to_mark() {
    if (marks_.empty()) fail("an opcode finds no mark on the stack");
    std::vector<Ref> items(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }

  std::vector<Ref> pop_some(std::size_t count) {
    std::vector<Ref> items(count);
    while (count-- > 0) items[count] = pop();
    return items;
  }

  void push_text(std::uint64_t length) {
    const std::string_view text = take(length);
    if (utf8_damage(text)) fail("a string is not UTF-8");
    push_new(text);
  }

  void push_long(std::uint64_t length) {
    const std::string_view part = take(length);
    if (length > 8) return push_new(Global{"builtins", "int"});  // kept as a name: nothing here needs such numbers
    std::uint64_t value = !part.empty() && (part.back() & 0x80) ? ~std::uint64_t{0} : 0;
    for (std::size_t i = part.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(part[i]);
    push_new(static_cast<std::int64_t>(value));
  }

  void push_double() {
    std::uint64_t bits = 0;
    for (const char c : take(8)) bits = bits << 8 | static_cast<unsigned char>(c);  // big endian
    push_new(std::bit_cast<double>(bits));
  }

  void append(const std::vector<Ref>& items) {
    if (auto* list = std::get_if<List>(&top()->data)) {
      list->items.insert(list->items.end(), items.begin(), items.end());
    } else if (!std::holds_alternative<Call>(top()->data)) {
      fail("items are appended to what is no list");
    }
  }

  void set_items(const std::vector<Ref>& items) {
    if (items.size() % 2 != 0) fail("a key has no value");
    auto* dict = std::get_if<Dict>(&top()->data);
    if (dict == nullptr && !std::holds_alternative<Call>(top()->data)) fail("a key is set in what is no dict");
    for (std::size_t i = 0; dict != nullptr && i < items.size(); i += 2)
      dict->items.emplace_back(items[i], items[i + 1]);
  }

  Dict dict_of(const std::vector<Ref>& items) {
    if (items.size() % 2 != 0) fail("a key has no value");
    Dict dict;
    for (std::size_t i = 0; i < items.size(); i += 2) dict.items.emplace_back(items[i], items[i + 1]);
    return dict;
  }

  void call() {
    const Ref arguments = pop();
    const Ref function = pop();
    const auto* global = function->as<Global>();
    const auto* tuple = arguments->as<Tuple>();
    if (global == nullptr || tuple == nullptr) fail("a call is not of a named function with a tuple");
    if (global->is("collections.OrderedDict") && tuple->items.empty()) return push_new(Dict{});
    push_new(Call{global, tuple});
  }

  void build() {
    const Ref state = pop();
    if (auto* call = std::get_if<Call>(&top()->data)) call->state = state;
    // Attributes set on plain values (an OrderedDict's _metadata) say nothing about tensors.
  }

  void stack_global() {
    const Ref name = pop();
    const Ref module = pop();
    if (!name->as<std::string_view>() || !module->as<std::string_view>()) fail("a class is named by what is no string");
    push_new(Global{*module->as<std::string_view>(), *name->as<std::string_view>()});
  }

  void global() {
    const std::string_view module = line();
    push_new(Global{module, line()});
  }

  void get(std::uint64_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) fail("a value is fetched that was not stored");
    push(found->second);
  }

  void step(std::uint64_t opcode) {
    switch (opcode) {
      case 0x80:  // PROTO
        if (const auto protocol = number(1); protocol < 2 || protocol > 5) fail("an unknown protocol");
        return;
      case 0x95: take(8); return;  // FRAME
      case '.': result_ = pop(); return;
      case '(': marks_.push_back(stack_.size()); return;
      case '0': pop(); return;
      case '1': pop_to_mark(); return;
      case '2': push(top()); return;
      case 'N': return push_new(None{});
      case 0x88: return push_new(true);
      case 0x89: return push_new(false);
      case 'J': return push_new(std::int64_t{static_cast<std::int32_t>(number(4))});
      case 'K': return push_new(static_cast<std::int64_t>(number(1)));
      case 'M': return push_new(static_cast<std::int64_t>(number(2)));
      case 0x8a: return push_long(number(1));
      case 0x8b: return push_long(number(4));
      case 'G': return push_double();
      case 'X': return push_text(number(4));
      case 0x8c: return push_text(number(1));
      case 0x8d: return push_text(number(8));
      case 'U':
      case 'C': return push_new(Bytes{take(number(1))});
      case 'T':
      case 'B': return push_new(Bytes{take(number(4))});
      case 0x8e:
      case 0x96: return push_new(Bytes{take(number(8))});
      default: return step_more(opcode);
    }
  }

  void step_more(std::uint64_t opcode) {
    switch (opcode) {
      case '}': return push_new(Dict{});
      case ']':
      case 0x8f: return push_new(List{});  // a set is a list here
      case ')': return push_new(Tuple{});
      case 't': return push_new(Tuple{pop_to_mark()});
      case 0x85: return push_new(Tuple{pop_some(1)});
      case 0x86: return push_new(Tuple{pop_some(2)});
      case 0x87: return push_new(Tuple{pop_some(3)});
      case 'l':
      case 0x91: return push_new(List{pop_to_mark()});
      case 'd': return push_new(dict_of(pop_to_mark()));
      case 'a': return append(pop_some(1));
      case 'e':
      case 0x90: return append(pop_to_mark());
      case 's': return set_items(pop_some(2));
      case 'u': return set_items(pop_to_mark());
      case 'q': memo_[number(1)] = top(); return;
      case 'r': memo_[number(4)] = top(); return;
      case 0x94: memo_[memo_.size()] = top(); return;
      case 'h': return get(number(1));
      case 'j': return get(number(4));
      case 'c': return global();
      case 0x93: return stack_global();
      case 'R':
      case 0x81: return call();
      case 0x92: pop(); return call();  // keyword arguments are of no interest
      case 'b': return build();
      case 'Q': return push_new(PersistentId{pop()});
      default: {
        char name[16];
        std::snprintf(name, sizeof name, "0x%02X", static_cast<unsigned>(opcode));
        fail(std::string("opcode ") + name + ", which torch.save does not write,");
      }
    }
  }

  std::string_view bytes_;
  std::string_view where_;
  Arena& arena_;
  std::uint64_t at_ = 0;
  std::uint64_t opcode_at_ = 0;
  std::vector<Value*> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint64_t, Value*> memo_;
  Ref result_ = nullptr;
};

}  // namespace

bool Global::is(std::string_view dotted) const {
  return dotted.size() == module.size() + 1 + name.size() && dotted.starts_with(module) &&
         dotted[module.size()] == '.' && dotted.ends_with(name);
}

std::string Global::text() const { return std::string(module) + "." + std::string(name); }

Ref unpickle(std::string_view bytes, std::string_view where, Arena& arena, std::size_t* used) {
  Machine machine(bytes, where, arena);
  const Ref result = machine.run();
  if (used) *used = machine.used();
  return result;
}

}  // namespace ditto::formats::pickle

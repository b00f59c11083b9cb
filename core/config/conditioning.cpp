// NeMo Imagen's section of texts (model.conditioning in its YAML files), field by field as a recipe says the same.
#include <ditto/error.h>
#include <ditto/math/sizes.h>

#include "core/config/run_options.h"
#include "core/config/section.h"

namespace ditto {

using formats::Node;
using formats::Table;

namespace {

constexpr std::string_view kSection = "conditioning";

struct ImagenFields {
  bool online_encoding = false;
  std::string encoder_path, precached_key, out_key;
  int64_t embed_dim = 0, token_length = 0;
  double drop_rate = 0;

  void read(OptionReader& option) {
    option("online_encoding", online_encoding, "T5 encodes captions; false: each sample has its text's embeddings");
    option("encoder_path", encoder_path, "with online_encoding: the folder of T5's weights");
    option("precached_key", precached_key, "else: which embeddings of a sample's pickle");
    option("out_key", out_key, "what they are called until they have their places; empty: as the model calls them");
    option("embed_dim", embed_dim, "their width; 0: as it is").between(0, most::kWidth);
    option("token_length", token_length, "places of a text").between(1, most::kSide);
    option("drop_rate", drop_rate, "share of the texts that are zeros in training").between(0.0, 1.0);
    const std::string online = "is not there, and online_encoding is true", cached = ", and online_encoding is false";
    if (online_encoding && encoder_path.empty())
      option.reject("encoder_path", online, "name the folder of T5's weights: none are downloaded");
    if (online_encoding && !precached_key.empty())
      option.reject("precached_key", "is of embeddings that are there, and online_encoding is true", "leave one out");
    if (!online_encoding && precached_key.empty())
      option.reject("precached_key", "is not there" + cached,
                    "say which embeddings of the pickles, as \"embeddings_t5_xxl\"");
    if (!online_encoding && !encoder_path.empty())
      option.reject("encoder_path", "is of an encoder" + cached, "leave one of the two out");
  }
};

// Puts options in the places where a recipe has them, with the place of the field that says them.
class Recipes {
 public:
  Recipes(Table& recipe, const Table& fields, const std::string& file)
      : recipe_(recipe), fields_(fields), file_(file) {}

  void put(std::string_view field, const std::string& option, Node::Value value) {
    if (const Node* there = recipe_.find_path(option))
      throw Error(ErrorKind::config, place(*there, file_),
                  option + " stands beside [conditioning], whose " + std::string(field) + " says it",
                  "leave one of the two out");
    set(field, option, std::move(value));
  }
  void put_if_given(std::string_view field, const std::string& option, Node::Value value) {
    if (fields_.find(field)) put(field, option, std::move(value));
  }
  // What goes with the section, unless the recipe says otherwise.
  void suggest(const std::string& option, Node::Value value) {
    const auto section = option.substr(0, option.find('.'));
    if (recipe_.find(section) && !recipe_.find_path(option)) set({}, option, std::move(value));
  }

 private:
  void set(std::string_view field, const std::string& option, Node::Value value) {
    const Node* said = fields_.find(field);
    recipe_.set_path(option, {std::move(value), said ? said->source : fields_.entries().front().key_source});
  }

  Table& recipe_;
  const Table& fields_;
  const std::string& file_;
};

}  // namespace

void expand_conditioning(Table& recipe, const std::string& file) {
  const Node* section = recipe.find(kSection);
  if (!section) return;
  const auto* table = section->as<Table>();
  if (!table || table->empty())
    throw Error(ErrorKind::config, place(*section, file), "[conditioning] says nothing", "leave it out");
  const Table fields = *table;
  const auto given = options_of(fields, std::string(kSection), place(*section, file));
  OptionReader reader(given, Effect::course);
  ImagenFields c;
  c.read(reader);
  reader.finish();
  recipe.erase(kSection);

  Recipes to(recipe, fields, file);
  if (c.online_encoding) {
    to.put("online_encoding", "encoder.t5.plugin", std::string(kOnlineText));
    to.put("encoder_path", "encoder.t5.weights", c.encoder_path);
    to.put("token_length", "encoder.t5.tokens", c.token_length);
    to.put("token_length", "encoder.t5.zero_padding", true);
    to.put_if_given("embed_dim", "encoder.t5.width", c.embed_dim);
    to.put_if_given("out_key", "encoder.t5.name", c.out_key);
  } else {
    to.suggest("data.text", std::string("pickle"));
    to.put("precached_key", "data.text_key", c.precached_key);
    to.put_if_given("embed_dim", "data.text_width", c.embed_dim);
    to.put_if_given("out_key", "data.text_name", c.out_key);
  }
  to.put("token_length", "encoder.conditioning.plugin", std::string(kFittedText));
  to.put("token_length", "encoder.conditioning.tokens", c.token_length);
  to.put_if_given("drop_rate", "encoder.conditioning.drop", c.drop_rate);
  to.put_if_given("out_key", "encoder.conditioning.takes", c.out_key);
  // A text is dropped once, and guided by what it then was.
  to.suggest("objective.condition_dropout", 0.0);
  // Imagen's UNets know no other way than zeros.
  const auto* model = recipe.find_path("model.plugin");
  const auto* plugin = model ? model->as<std::string>() : nullptr;
  if (!plugin || !plugin->starts_with("imagen_")) to.suggest("model.null_text", std::string("zero"));
}

}  // namespace ditto

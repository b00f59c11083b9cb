// What flows between a model's blocks.
//
// Legend: B samples, T tokens here (a rank's own slice, or a pack), D width, S tokens of text, E their width.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include <ditto/visibility.h>

namespace ditto {

// The tokens' places: frames x rows x columns, row-major. A picture has one frame.
struct Grid {
  int64_t frames = 1, rows = 0, columns = 0;
  int64_t tokens() const { return frames * rows * columns; }
};

// Several samples in one row of tokens. Known whole on every rank, however tokens are cut.
struct Packing {
  std::vector<int64_t> lengths;  // tokens of each sample; they lie one after another
  torch::Tensor sample_T;        // int64: the sample a token belongs to, as a row of the conditioning
  std::vector<Grid> grids = {};  // of each sample: what spatial and temporal attention need; none: they are refused
  torch::Tensor frame_T = {};    // int64: the frame a token belongs to, among those of all samples; with grids
};
// Of these lengths, with sample_T, and with grids frame_T, on `device`.
DITTO_API std::shared_ptr<const Packing> packing_of(std::vector<int64_t> lengths, torch::Device device,
                                                    std::vector<Grid> grids = {});

// All that is per sample, or per token of text: made once by Model::condition.
struct Conditioning {
  // The modulation's input, a row for each sample; or [B, F, D], for each frame of its grid: of a pack [1, F, D] with
  // the frames of all its samples. Ops::norm_modulate and gated_residual take rows of either.
  torch::Tensor cond_BD;
  torch::Tensor text_BSE;      // for cross-attention; undefined where there is none
  torch::Tensor text_mask_BS;  // bool, true where there is text; undefined: all of it
  // Of each sample the first tokens that its queries may see, as far as the host knows (Batch::lengths); empty: all S.
  // In packs no key beyond them is computed; what they leave the mask hides still.
  std::vector<int64_t> text_lengths = {};
};

enum class Role {
  evolving,  // blocks change it (tokens, long skips): a pipeline sends it on, and its gradient comes back
  carried,   // conditioning: made on the first stage and sent along, with its gradient coming back
  constant,  // position and rotary tables: no parameters, no gradient, made on every stage
};

// The tokens of a sequence: their places in the whole, and which of them are here.
struct DITTO_API Sequence {
  Grid grid;                               // of the whole sample, not of a slice
  std::shared_ptr<const Packing> packing;  // none: B rows of T tokens each
  // Place in the whole of the first token that attention and experts see here.
  int64_t first_token = 0;
  // Between such layers tokens begin this much later: sequence regions cut them once more.
  int64_t region_offset = 0;

  int64_t tokens() const;  // of a whole row: a sample's, or all of a pack
  // The conditioning's row for each of the `count` tokens here, int64; undefined without packing (row b of B belongs to
  // all its tokens).
  torch::Tensor sample_of_token(int64_t count) const;
  // Of conditioning that has a row for each frame, flattened: its row for each of `rows` rows of `count` tokens here,
  // int64 [rows * count]. Throws Error(shape) for a pack that does not say its samples' grids.
  torch::Tensor frame_of_token(int64_t rows, int64_t count, torch::Device device) const;
};

struct Field {
  std::string name;
  torch::Tensor* tensor;
  int64_t token_dim;  // -1: has none
  Role role;
  Sequence* sequence;  // whose tokens those along token_dim are; one that has several fields may stand there repeatedly
};

// As a sequence, of x_BTD.
struct DITTO_API Stream : Sequence {
  torch::Tensor x_BTD;                  // the tokens
  std::deque<torch::Tensor> skips_BTD;  // long skips (U-ViT, arXiv:2209.12152), last in first out
  Conditioning condition;               // carried
  torch::Tensor rotary_TK;              // constant: a rotary_table, undefined where a model has none
  struct Extra {
    torch::Tensor tensor;
    int64_t token_dim = -1;
    Role role = Role::evolving;
    // Where its tokens are not the stream's: a second sequence (text that evolves beside a picture), or what belongs to
    // it. It is cut by its own count.
    std::optional<Sequence> own = {};
  };
  std::map<std::string, Extra> extra;                     // a model's own further fields, by any name
  std::map<std::string, torch::Tensor> auxiliary_losses;  // per sample [B], by name; evolving: blocks add to them

  // The samples, for draws (Context::dropout); set by the host on every stage.
  std::vector<int64_t> ids;

  // The sequence of the extra of this name; of "" the stream itself. Throws Error(plugin) if there is none.
  const Sequence& sequence(const std::string& name) const;
  // Every defined tensor above, each under a name of its own ("extra.NAME"). Strategies go through this list and name
  // no field.
  std::vector<Field> fields();
};

}  // namespace ditto

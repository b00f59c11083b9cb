// Tensors to pictures, and many pictures to one sheet.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <torch/types.h>

#include "core/formats/picture/picture.h"

namespace ditto::report {

// images_BCHW: floating point, -1 (black) to 1 (white), C = 1 or 3. A pixel is 127.5 x + 127.5 in double precision,
// rounded to the nearest integer (halves to the even one), held within 0 … 255; nan is 0. Throws Error(shape).
std::vector<formats::Picture> to_pictures(const torch::Tensor& images_BCHW);

struct SheetOptions {
  int columns = 0;  // 0: as many as make the sheet nearly square
  int min_cell =
      64;       // pixels: smaller pictures are enlarged by the least whole factor that reaches it, without smoothing
  int gap = 2;  // pixels between cells and around them, mid grey
  int most_side = formats::kWebpSide;  // pixels: columns are made fewer, and rows that do not fit are left out
};

// Row by row, from the top left. Pictures may differ in size (each is centred in a cell of the largest) and in
// channels (grey ones become colour beside colour ones). Throws Error(shape) for no picture.
formats::Picture make_sheet(std::span<const formats::Picture> pictures, const SheetOptions& options = {});

// samples: [B, C, H, W], one sheet; or [B, C, F, H, W], one for each frame. Throws Error(shape) as to_pictures.
std::vector<formats::Picture> make_sheets(const torch::Tensor& samples, const SheetOptions& options = {});

// Every pixel becomes a block of factor x factor.
formats::Picture enlarge(const formats::Picture& picture, int factor);

// Text chunks that say how a picture was made: "Software", and "ditto" with `settings`, a JSON object as text.
formats::PngText settings_text(std::string_view settings);

}  // namespace ditto::report

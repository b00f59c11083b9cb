// An autoencoder as others write it: diffusers' AutoencoderKL, and github.com/CompVis/latent-diffusion, whose names
// Flux.1's file has too ("ldm").
#pragma once

#include <string>
#include <vector>

#include <ditto/exchange/foreign_names.h>
#include <ditto/nn/autoencoder.h>

namespace ditto {

inline std::vector<std::string> autoencoder_formats() { return {"diffusers", "ldm"}; }
inline std::vector<std::string> autoencoder_classes() { return {"AutoencoderKL"}; }
// Of blocks 0 … size.blocks() - 1 of AutoencoderBlock, of pictures [C, side, side]; side 0: it is not known. Files of
// diffusers' before 0.15 call the layers of attention otherwise, and are read too.
DITTO_API ForeignFormat autoencoder_names(const Units& of, const AutoencoderSize& size, int64_t pictures, int64_t side,
                                          const std::string& format);

// What the file's tensors say of the size, in one of these formats or by our own names (format ""), and groups, where a
// config.json says them. Throws Error(checkpoint) for tensors that are none, and for a configuration that says
// otherwise.
struct DITTO_API ForeignAutoencoder {
  explicit ForeignAutoencoder(const ForeignShapes& file);
  // After options were read over the size: refuses a recipe that says no groups, where no configuration does and they
  // cannot be 32, which all published ones have.
  void require_groups(const OptionReader& reader, const ForeignShapes& file) const;
  AutoencoderSize size;              // groups that nobody said: as many of 32 as divide all channels
  int64_t pictures;                  // C
  std::vector<std::string> options;  // of AutoencoderSize, of which a recipe may say nothing else
};

}  // namespace ditto

#include "core/formats/picture/picture_colour.h"

#include <lcms2.h>

#include <cmath>
#include <memory>

#include "core/formats/limits.h"

namespace ditto::formats {

namespace {

struct Close {
  void operator()(void* profile) const { cmsCloseProfile(profile); }
};
using Profile = std::unique_ptr<void, Close>;

cmsToneCurve* srgb_curve() {
  const cmsFloat64Number parameters[5] = {2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045};
  return cmsBuildParametricToneCurve(nullptr, 4, parameters);
}

Profile srgb_grey() {
  cmsToneCurve* curve = srgb_curve();
  Profile profile(cmsCreateGrayProfile(cmsD50_xyY(), curve));
  cmsFreeToneCurve(curve);
  return profile;
}

// Stored values -> sRGB's, of one picture's kind.
struct Kind {
  cmsColorSpaceSignature space;
  cmsUInt32Number in, out;
  std::size_t values;
};

Kind kind_of(Colours colours, bool opacity) {
  switch (colours) {
    case Colours::grey:
      return opacity ? Kind{cmsSigGrayData, TYPE_GRAYA_8, TYPE_GRAYA_8, 2}
                     : Kind{cmsSigGrayData, TYPE_GRAY_8, TYPE_GRAY_8, 1};
    case Colours::rgb:
      return opacity ? Kind{cmsSigRgbData, TYPE_RGBA_8, TYPE_RGBA_8, 4}
                     : Kind{cmsSigRgbData, TYPE_RGB_8, TYPE_RGB_8, 3};
    case Colours::cmyk: return {cmsSigCmykData, TYPE_CMYK_8, TYPE_RGB_8, 4};
    case Colours::cmyk_inverted: break;
  }
  return {cmsSigCmykData, TYPE_CMYK_8_REV, TYPE_RGB_8, 4};
}

bool is_srgb(const cmsToneCurve* curve) {
  if (curve == nullptr) return false;
  constexpr int kSteps = 32;
  for (int i = 0; i <= kSteps; ++i) {
    const double value = static_cast<double>(i) / kSteps;
    const double light = value <= 0.04045 ? value / 12.92 : std::pow((value + 0.055) / 1.055, 2.4);
    if (std::abs(cmsEvalToneCurveFloat(curve, static_cast<float>(value)) - light) > 0.001) return false;
  }
  return true;
}

// Most profiles that files carry: then nothing has to be converted, and no table made.
bool is_srgb(cmsHPROFILE profile, Colours colours) {
  const auto curve = [&](cmsTagSignature tag) { return static_cast<const cmsToneCurve*>(cmsReadTag(profile, tag)); };
  if (cmsIsTag(profile, cmsSigAToB0Tag)) return false;
  if (colours == Colours::grey) return is_srgb(curve(cmsSigGrayTRCTag));
  static constexpr cmsCIEXYZ kColumns[3] = {
      {0.4361, 0.2225, 0.0139}, {0.3851, 0.7169, 0.0971}, {0.1431, 0.0606, 0.7141}};
  static constexpr cmsTagSignature kTags[3] = {cmsSigRedColorantTag, cmsSigGreenColorantTag, cmsSigBlueColorantTag};
  for (int i = 0; i < 3; ++i) {
    const auto* column = static_cast<const cmsCIEXYZ*>(cmsReadTag(profile, kTags[i]));
    if (column == nullptr || std::abs(column->X - kColumns[i].X) > 0.001 ||
        std::abs(column->Y - kColumns[i].Y) > 0.001 || std::abs(column->Z - kColumns[i].Z) > 0.001)
      return false;
  }
  return is_srgb(curve(cmsSigRedTRCTag)) && is_srgb(curve(cmsSigGreenTRCTag)) && is_srgb(curve(cmsSigBlueTRCTag));
}

}  // namespace

ToSrgb::ToSrgb(std::span<const std::byte> profile, Colours colours, std::size_t pixels, bool opacity) {
  if (profile.empty() || profile.size() > limits::kProfileBytes) return;
  const Profile opened(cmsOpenProfileFromMem(profile.data(), static_cast<cmsUInt32Number>(profile.size())));
  if (opened) start(opened.get(), colours, pixels, opacity);
}

ToSrgb::ToSrgb(const float (&primaries)[8], std::size_t pixels, bool opacity) {
  const auto at = [&](int i) { return cmsCIExyY{primaries[i], primaries[i + 1], 1}; };
  const cmsCIExyY white = at(6);
  const cmsCIExyYTRIPLE triple{at(0), at(2), at(4)};
  cmsToneCurve* curve = srgb_curve();
  cmsToneCurve* curves[3] = {curve, curve, curve};
  const Profile made(cmsCreateRGBProfile(&white, &triple, curves));
  cmsFreeToneCurve(curve);
  if (made) start(made.get(), Colours::rgb, pixels, opacity);
}

void ToSrgb::start(void* profile, Colours colours, std::size_t pixels, bool opacity) {
  constexpr std::size_t kManyPixels = 10'000;  // then a table pays
  const Kind kind = kind_of(colours, opacity);
  if (cmsGetColorSpace(profile) != kind.space || (kind.in == kind.out && is_srgb(profile, colours))) return;
  const Profile target = colours == Colours::grey ? srgb_grey() : Profile(cmsCreate_sRGBProfile());
  const cmsUInt32Number flags =
      cmsFLAGS_NOCACHE | (opacity ? cmsFLAGS_COPY_ALPHA : 0U) | (pixels < kManyPixels ? cmsFLAGS_NOOPTIMIZE : 0U);
  transform_ = cmsCreateTransform(profile, kind.in, target.get(), kind.out, INTENT_PERCEPTUAL, flags);
  values_ = kind.values;
}

ToSrgb::~ToSrgb() {
  if (transform_ != nullptr) cmsDeleteTransform(transform_);
}

void ToSrgb::convert(std::vector<std::uint8_t>& pixels) const {
  if (transform_ != nullptr)
    cmsDoTransform(transform_, pixels.data(), pixels.data(), static_cast<cmsUInt32Number>(pixels.size() / values_));
}

void ToSrgb::convert(const std::uint8_t* inks, std::uint8_t* rgb, std::size_t pixels) const {
  cmsDoTransform(transform_, inks, rgb, static_cast<cmsUInt32Number>(pixels));
}

}  // namespace ditto::formats

// Tells a strategy when backward reaches a unit and when it has left it. LibTorch's modules have no backward hooks.
#pragma once

#include <functional>
#include <set>

#include <ditto/parallel/strategy.h>

namespace ditto {

// Backward reaches a unit when it is about to compute with what the unit made, and has left it when it reaches one that
// ran earlier, or ends: by then all of the unit's gradients are in the leaves. Each call of backward tells of every
// unit on its way once, and changes no number of it. Units that made nothing that requires a gradient are not told of.
class DITTO_API BackwardWatch {
 public:
  using Event = std::function<void(const Unit&)>;
  BackwardWatch(Event reached, Event left);  // called in the thread that runs backward
  ~BackwardWatch();

  // The unit's run, with hooks on what it makes. The watch outlives what was made.
  UnitRun wrap(UnitRun run);
  // Forgets a backward that threw.
  void reset() { open_.clear(); }

 private:
  void reach(const Unit& unit);
  void leave_last();
  Event reached_, left_;
  std::set<Unit> open_;  // reached and not left
};

}  // namespace ditto

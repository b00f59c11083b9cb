// Layers for models. A layer states what it computes on one device and how it may be cut; strategies do the rest.
#pragma once

#include <ditto/nn/cut_layer.h>
#include <ditto/nn/embed.h>
#include <ditto/nn/experts.h>
#include <ditto/nn/layer.h>
#include <ditto/nn/linear.h>
#include <ditto/nn/module.h>
#include <ditto/nn/norm.h>
#include <ditto/nn/split.h>
#include <ditto/nn/tables.h>

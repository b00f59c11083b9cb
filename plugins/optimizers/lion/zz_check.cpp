namespace a {}
#include <ditto/ditto.h>
#include <ditto/list_update.h>
#define DITTO_PLUGIN_CHECK
#include "plugins/optimizers/lion/lion.cpp"

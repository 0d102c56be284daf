// node/admin_page.h: the page at / of the admin HTTP: the pool live, for whoever opens it in a browser.
//
// One HTML text, without a build step and without anything from elsewhere. It asks this node's /metrics, /stat and /clients
// each second. What clients say of themselves (their names) is only ever shown as text.
#pragma once

#include <string_view>

namespace kvist {

std::string_view admin_page();

}  // namespace kvist

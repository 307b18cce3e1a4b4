// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
// Boost 1.74 uses std::exchange without including <utility>: the one above must stay in front.
#include <boost/asio/completion_condition.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>

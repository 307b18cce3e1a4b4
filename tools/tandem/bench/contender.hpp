// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "tandem/bench/figures.hpp"
#include "tandem/device.hpp"

namespace tandem::cli {

/// One way to run an operation of one size, with memory of its own. Every call is made by all ranks, in the same order,
/// and enqueues; memory of earlier calls has to be at rest before renew().
class Contender {
 public:
  Contender(std::string name, Volume volume, std::uint64_t element_bytes)
      : name_(std::move(name)), volume_(volume), element_bytes_(element_bytes) {}
  virtual ~Contender() = default;
  Contender(const Contender&) = delete;
  Contender& operator=(const Contender&) = delete;

  const std::string& name() const noexcept { return name_; }
  const Volume& volume() const noexcept { return volume_; }
  std::uint64_t element_bytes() const noexcept { return element_bytes_; }

  /// Other random inputs, and poison where results go.
  virtual void renew(const Stream& stream, std::uint64_t salt) = 0;
  /// The operation; later work of `stream` comes after it. May be captured in a graph where the transport can.
  virtual void enqueue(const Stream& stream) = 0;
  /// Counts in the BenchData what is wrong in the results of the last salt.
  virtual void check(const Stream& stream) = 0;

  /// What follows is in so many parts; before renew().
  virtual void divide(int /*parts*/) {}

  // The operation in parts, beside compute that needs what arrives in them, or makes what leaves.
  /// Begins it on `communication`.
  virtual void begin_parts(const Stream& communication, int parts) = 0;
  /// `compute` is about to work with part `part`.
  virtual void before_part(const Stream& compute, int part) = 0;
  /// `compute` has done so.
  virtual void after_part(const Stream& compute, int part) = 0;
  /// `compute` waits for the rest.
  virtual void end_parts(const Stream& compute) = 0;

 private:
  const std::string name_;
  const Volume volume_;
  const std::uint64_t element_bytes_;
};

}  // namespace tandem::cli

// All that a sequence carries from token to token, and its only owner.
//
//   SequenceState state(config, account);
//   ... forward passes append to it ...
//   SequenceState other = state.fork();         // shares full latent pages until one side writes
//   std::string bytes = state.save();           // exact: restore() continues with the same bits
//
// Holds, per KDA layer, the recurrent matrices S and the last W-1 raw projections of q, k, v; per
// MLA layer, the normed latent and the rope slice of every position, in pages of 64; and the token
// ids. Layouts (floats):
//   recurrent  [kda layer][head][ceil(d/16)][d keys][16 value columns]
//   history    [kda layer][q, k, v][head][W-1, oldest first][d]
//   latents    [page][mla layer][64 positions][latent + rope]
// Memory: tags "state" and "latents" of the account. Thread rule: one forward pass at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/memory.h"
#include "weights/config.h"

namespace k3 {

class SequenceState {
 public:
  SequenceState(const ModelConfig& config, MemoryAccount& account);
  SequenceState(SequenceState&&) = default;
  SequenceState& operator=(SequenceState&&) = default;

  // Tokens whose effect is in the state. Media positions have the placeholder's id.
  const std::vector<int32_t>& ids() const { return ids_; }
  int64_t length() const { return static_cast<int64_t>(ids_.size()); }

  SequenceState fork() const;
  std::string save() const;
  // Replaces the content. Throws InputError when the bytes are not a state of this model.
  void restore(std::string_view bytes);

  // Used by the model's layers; kda_layer and mla_layer count layers of that kind from 0.
  float* recurrent(int64_t kda_layer, int64_t head);
  float* history(int64_t kda_layer, int64_t which, int64_t head);  // which: 0 q, 1 k, 2 v
  const float* const* pages(int64_t mla_layer);                    // [page count]
  float* latent(int64_t mla_layer, int64_t position);
  // Makes the latent pages of positions below `length` exist, and those from length() on its own.
  void reserve(int64_t length);
  void append(const int32_t* ids, int64_t count);

  // Bytes that a state of this model takes, apart from latents; and the latents of one page.
  static int64_t fixed_bytes(const ModelConfig& config);
  static int64_t page_bytes(const ModelConfig& config);

 private:
  // Everything but the content of `fixed_`; the int tells it from a copy.
  SequenceState(const SequenceState& other, int);
  int64_t page_floats() const { return mla_layers_ * 64 * channels_; }
  void index_pages();

  MemoryAccount* account_;
  int64_t kda_layers_, mla_layers_, heads_, head_dim_, width_, channels_;
  int64_t head_state_, layer_state_, head_history_;
  Buffer fixed_;  // recurrent, then history
  std::vector<std::shared_ptr<Buffer>> pages_;
  std::vector<std::vector<const float*>> page_table_;  // [mla layer][page]
  std::vector<int32_t> ids_;
};

}  // namespace k3

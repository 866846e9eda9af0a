#include "model/sequence_state.h"

#include <fmt/format.h>

#include <cstring>

#include "base/error.h"
#include "kernels/kernels.h"

namespace k3 {
namespace {

struct StateShape {
  int64_t kda_layers = 0, mla_layers = 0, head_state, head_history, channels;

  explicit StateShape(const ModelConfig& c) {
    for (int64_t i = 0; i < c.num_hidden_layers; ++i)
      (c.attention(i) == AttentionKind::kKda ? kda_layers : mla_layers)++;
    head_state = round_up(c.kda_head_dim, 16) * c.kda_head_dim;
    head_history = (c.short_conv_kernel_size - 1) * c.kda_head_dim;
    channels = c.kv_lora_rank + c.qk_rope_head_dim;
  }
  int64_t fixed_floats(int64_t heads) const {
    return kda_layers * heads * (head_state + 3 * head_history);
  }
};

// Starts a saved state; the digits are the format's version.
constexpr char kMagic[8] = {'k', '3', 's', 't', 'a', 't', 'e', '1'};

struct SavedHeader {
  char magic[8];
  int64_t kda_layers, mla_layers, heads, head_dim, width, channels, length;
};

}  // namespace

SequenceState::SequenceState(const ModelConfig& c, MemoryAccount& account)
    : account_(&account),
      heads_(c.kda_num_heads),
      head_dim_(c.kda_head_dim),
      width_(c.short_conv_kernel_size) {
  const StateShape shape(c);
  kda_layers_ = shape.kda_layers;
  mla_layers_ = shape.mla_layers;
  channels_ = shape.channels;
  head_state_ = shape.head_state;
  head_history_ = shape.head_history;
  layer_state_ = heads_ * head_state_;
  fixed_ = Buffer(account, "state", static_cast<uint64_t>(fixed_bytes(c)));
  page_table_.resize(static_cast<size_t>(mla_layers_));
}

int64_t SequenceState::fixed_bytes(const ModelConfig& c) {
  return StateShape(c).fixed_floats(c.kda_num_heads) * static_cast<int64_t>(sizeof(float));
}
int64_t SequenceState::page_bytes(const ModelConfig& c) {
  const StateShape shape(c);
  return shape.mla_layers * kMlaPage * shape.channels * static_cast<int64_t>(sizeof(float));
}

float* SequenceState::recurrent(int64_t kda_layer, int64_t head) {
  return fixed_.as<float>() + kda_layer * layer_state_ + head * head_state_;
}
float* SequenceState::history(int64_t kda_layer, int64_t which, int64_t head) {
  return fixed_.as<float>() + kda_layers_ * layer_state_ +
         ((kda_layer * 3 + which) * heads_ + head) * head_history_;
}
const float* const* SequenceState::pages(int64_t mla_layer) {
  return page_table_[static_cast<size_t>(mla_layer)].data();
}
float* SequenceState::latent(int64_t mla_layer, int64_t position) {
  float* page = pages_[static_cast<size_t>(position / kMlaPage)]->as<float>();
  return page + (mla_layer * kMlaPage + position % kMlaPage) * channels_;
}

void SequenceState::index_pages() {
  for (int64_t layer = 0; layer < mla_layers_; ++layer) {
    auto& table = page_table_[static_cast<size_t>(layer)];
    table.clear();
    for (const auto& page : pages_)
      table.push_back(page->as<float>() + layer * kMlaPage * channels_);
  }
}

void SequenceState::reserve(int64_t new_length) {
  if (mla_layers_ == 0) return;
  const auto bytes = static_cast<uint64_t>(page_floats()) * sizeof(float);
  // Pages before the one that length() falls in are full and never written again.
  for (auto i = static_cast<size_t>(length() / kMlaPage); i < pages_.size(); ++i) {
    if (pages_[i].use_count() == 1) continue;
    auto own = std::make_shared<Buffer>(*account_, "latents", bytes);
    std::memcpy(own->data(), pages_[i]->data(), bytes);
    pages_[i] = std::move(own);
  }
  while (static_cast<int64_t>(pages_.size()) * kMlaPage < new_length)
    pages_.push_back(std::make_shared<Buffer>(*account_, "latents", bytes));
  index_pages();
}

void SequenceState::append(const int32_t* ids, int64_t count) {
  ids_.insert(ids_.end(), ids, ids + count);
}

SequenceState::SequenceState(const SequenceState& other, int)
    : account_(other.account_),
      kda_layers_(other.kda_layers_),
      mla_layers_(other.mla_layers_),
      heads_(other.heads_),
      head_dim_(other.head_dim_),
      width_(other.width_),
      channels_(other.channels_),
      head_state_(other.head_state_),
      layer_state_(other.layer_state_),
      head_history_(other.head_history_),
      fixed_(*other.account_, "state", other.fixed_.size()),
      pages_(other.pages_),
      page_table_(other.page_table_),
      ids_(other.ids_) {}

SequenceState SequenceState::fork() const {
  SequenceState copy = SequenceState(*this, 0);
  std::memcpy(copy.fixed_.data(), fixed_.data(), fixed_.size());
  return copy;
}

std::string SequenceState::save() const {
  SavedHeader header{{}, kda_layers_, mla_layers_, heads_, head_dim_, width_, channels_, length()};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  std::string out(reinterpret_cast<const char*>(&header), sizeof header);
  out.append(reinterpret_cast<const char*>(ids_.data()), ids_.size() * sizeof(int32_t));
  out.append(reinterpret_cast<const char*>(fixed_.data()), fixed_.size());
  const int64_t pages = mla_layers_ ? ceil_div(length(), kMlaPage) : 0;
  for (int64_t i = 0; i < pages; ++i)
    out.append(reinterpret_cast<const char*>(pages_[static_cast<size_t>(i)]->data()),
               static_cast<size_t>(page_floats()) * sizeof(float));
  return out;
}

void SequenceState::restore(std::string_view bytes) {
  SavedHeader header;
  const auto refuse = [&](const char* why) {
    return InputError(fmt::format("saved state: {}", why));
  };
  if (bytes.size() < sizeof header) throw refuse("too short for a header");
  std::memcpy(&header, bytes.data(), sizeof header);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0)
    throw refuse("not a state of this version");
  if (header.kda_layers != kda_layers_ || header.mla_layers != mla_layers_ ||
      header.heads != heads_ || header.head_dim != head_dim_ || header.width != width_ ||
      header.channels != channels_)
    throw refuse("it belongs to a model of another shape");
  const auto count = static_cast<uint64_t>(header.length);
  const uint64_t page_size = static_cast<uint64_t>(page_floats()) * sizeof(float);
  if (header.length < 0 || count > bytes.size() / sizeof(int32_t))
    throw refuse("its length is wrong");
  const uint64_t pages = mla_layers_ ? (count + kMlaPage - 1) / kMlaPage : 0;
  if (bytes.size() != sizeof header + count * sizeof(int32_t) + fixed_.size() + pages * page_size)
    throw refuse("its size does not match its length");
  const char* at = bytes.data() + sizeof header;
  ids_.clear();
  pages_.clear();
  std::vector<int32_t> ids(count);
  std::memcpy(ids.data(), at, count * sizeof(int32_t));
  at += count * sizeof(int32_t);
  std::memcpy(fixed_.data(), at, fixed_.size());
  at += fixed_.size();
  reserve(header.length);
  for (uint64_t i = 0; i < pages; ++i, at += page_size)
    std::memcpy(pages_[i]->data(), at, page_size);
  ids_ = std::move(ids);
}

}  // namespace k3

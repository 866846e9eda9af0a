#include "train/dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"

namespace k3 {
namespace {

constexpr int32_t kEnd = 999;

// Documents 0 .. count-1; document i is i + 1 tokens long and says so in each.
TokenDataset numbered(MemoryStorage& storage, int count) {
  TokenWriter writer(storage, "a", 1000);
  for (int i = 0; i < count; ++i) writer.add(std::vector<int32_t>(static_cast<size_t>(i + 1), i));
  writer.add({});
  EXPECT_EQ(writer.documents(), count);
  writer.commit();
  return TokenDataset::open(storage, {"a"}, 1000);
}

TEST(TokenDataset, ComesBackAsWritten) {
  MemoryStorage storage;
  const TokenDataset data = numbered(storage, 5);
  ASSERT_EQ(data.documents(), 5);
  EXPECT_EQ(data.tokens(), 15);
  for (int i = 0; i < 5; ++i) {
    const auto text = data.document(i);
    EXPECT_EQ(text.size(), static_cast<size_t>(i + 1));
    EXPECT_TRUE(std::all_of(text.begin(), text.end(), [&](int32_t id) { return id == i; }));
  }
  EXPECT_EQ(TokenDataset::open(storage, {"a", "a"}, 1000).documents(), 10);
  EXPECT_THROW(TokenDataset::open(storage, {"a"}, 4), InputError);
  EXPECT_THROW(TokenDataset::open(storage, {"b"}, 4), InputError);
  EXPECT_THROW(TokenWriter(storage, "c", 4).add(std::vector<int32_t>{4}), InputError);
}

// One epoch of rows: every token of every document stands where it should, each is a target at most
// once, and all but the firsts of documents and rows are.
TEST(Packer, PacksEveryTokenOnce) {
  MemoryStorage storage;
  const TokenDataset data = numbered(storage, 40);
  for (const int64_t length : {1, 7, 64, 1000}) {
    Packer packer(data, {.length = length, .end_id = kEnd, .seed = 3});
    std::map<int32_t, int64_t> targets;
    while (packer.position().epoch == 0) {
      const PackedRow row = packer.next();
      ASSERT_EQ(static_cast<int64_t>(row.ids.size()), length + 1);
      ASSERT_EQ(row.starts.front(), 0);
      const std::set<int64_t> starts(row.starts.begin(), row.starts.end());
      ASSERT_EQ(starts.size(), row.starts.size());
      for (int64_t i = 1; i <= length; ++i) {
        const int32_t id = row.ids[static_cast<size_t>(i)],
                      before = row.ids[static_cast<size_t>(i - 1)];
        ASSERT_EQ(starts.contains(i), before == kEnd);
        if (starts.contains(i)) continue;
        ASSERT_TRUE(id == before || id == kEnd);
        if (packer.position().epoch == 0) ++targets[id];
      }
    }
    int64_t sum = 0;
    for (const auto& [id, count] : targets) {
      EXPECT_LE(count, id == kEnd ? 40 : id) << length;  // a document of i + 1 has i inner targets
      sum += count;
    }
    EXPECT_GE(sum, 820 - length);  // all but those of the row that the epoch ended in
  }
}

TEST(Packer, GoesOnWhereItStood) {
  MemoryStorage storage;
  const TokenDataset data = numbered(storage, 30);
  const Packer::Options options{.length = 50, .end_id = kEnd, .seed = 9};
  Packer whole(data, options);
  for (int i = 0; i < 40; ++i) {
    Packer resumed(data, options);
    resumed.seek(whole.position());
    const PackedRow a = whole.next(), b = resumed.next();
    ASSERT_EQ(a.ids, b.ids);
    ASSERT_EQ(a.starts, b.starts);
    ASSERT_EQ(whole.position(), resumed.position());
  }
  EXPECT_GT(whole.position().epoch, 1);
  EXPECT_THROW(whole.seek({0, 30, 0}), InputError);
  EXPECT_THROW(whole.seek({-1, 0, 0}), InputError);
}

TEST(Packer, EpochsAndSeedsHaveOrdersOfTheirOwn) {
  MemoryStorage storage;
  const TokenDataset data = numbered(storage, 30);
  const auto first = [&](uint64_t seed, int64_t epoch) {
    Packer packer(data, {.length = 400, .end_id = kEnd, .seed = seed});
    packer.seek({epoch, 0, 0});
    return packer.next().ids;
  };
  EXPECT_EQ(first(1, 0), first(1, 0));
  EXPECT_NE(first(1, 0), first(1, 1));
  EXPECT_NE(first(1, 0), first(2, 0));
}

TEST(Packer, HeldOutDocumentsAreOnOneSideOnly) {
  MemoryStorage storage;
  numbered(storage, 300);
  const TokenDataset data = TokenDataset::open(storage, {"a", "a"}, 1000);  // each text twice
  Packer::Options options{.length = 5, .end_id = kEnd, .seed = 4, .held_out = 0.1};
  const Packer train(data, options);
  options.validation = true;
  const Packer validation(data, options);
  EXPECT_EQ(train.documents() + validation.documents(), 600);
  EXPECT_GT(validation.documents(), 20);
  EXPECT_LT(validation.documents(), 120);
  EXPECT_EQ(validation.documents() % 2, 0);  // both copies
  options.held_out = 0;
  EXPECT_THROW(Packer(data, options), InputError);
}

}  // namespace
}  // namespace k3

// tests/client/contract.h: the suite of what each call promises, result by result, through both doors. Its tests are in
// contract_test.cc and contract_*_test.cc.
#pragma once

#include "client/doors.h"

namespace kvist::test {

class Contract : public DoorTest {
 protected:
  void SetUp() override { start(); }
  Random random{test_seed()};
};

}  // namespace kvist::test
